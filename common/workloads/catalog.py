"""What is known of each workload: its schema, where its data comes from and under which licence, how answers are checked.

Nothing is downloaded from here; the data set ids are those that the makers name. Licences are what the origin states about
itself: exam and textbook texts may carry rights upstream that the makers of a data set did not clear.
"""

from dataclasses import asdict, dataclass

from common.config_workload import JSONL, REASONING_GYM


@dataclass(frozen=True, slots=True, kw_only=True)
class Description:
    """One line of `rolloutpipe workloads`."""

    name: str
    about: str
    schema: str
    source: str
    licence: str
    checker: str

    def to_json(self) -> dict[str, str]:
        return asdict(self)


_SCIBENCH = "SciBench: problem_text, answer_number, unit, source"

CATALOG = (
    Description(
        name="lsat_ar",
        about="analytical reasoning of the law school test: one option of five",
        schema="AGIEval JSON lines (passage, question, options, label), or AR-LSAT passage lists (JSON)",
        source="github.com/ruixiangcui/AGIEval data/v1/lsat-ar.jsonl; github.com/zhongwanjun/AR-LSAT data/",
        licence="MIT as stated by both; exam texts",
        checker="letter",
    ),
    Description(
        name="sci_xw",
        about="college physics, chemistry and mathematics: a number, its unit stated in the prompt",
        schema=_SCIBENCH,
        source="dataset=xw27/scibench; github.com/mandyyyyii/scibench dataset/original/",
        licence="MIT as stated; textbook texts",
        checker="number, 5 % relative",
    ),
    Description(
        name="sci_jl",
        about="SciBench in another selection; which one is for you to say, by path or by where",
        schema=_SCIBENCH,
        source="not identified; for example where={source: [atkins, chemmc, ...]} of sci_xw's",
        licence="as its source",
        checker="number, 5 % relative",
    ),
    Description(
        name="olyphys",
        about="olympiad physics, text only, open-ended: numbers, expressions, lists",
        schema="OlympiadBench: question, context, final_answer, unit, error",
        source="dataset=Hothan/OlympiadBench dataset_config=OE_TO_physics_en_COMP",
        licence="Apache-2.0 (data set) and MIT (repository) as stated; contest texts",
        checker="mathematics, absolute tolerance where the row has one",
    ),
    Description(
        name="gsm8k",
        about="grade-school word problems: a number",
        schema="question, answer with the gold after ####",
        source="dataset=openai/gsm8k dataset_config=main; github.com/openai/grade-school-math",
        licence="MIT as stated",
        checker="number",
    ),
    Description(
        name="math500",
        about="500 problems of MATH: an expression",
        schema="problem, answer, subject, level (JSON list or lines)",
        source="dataset=HuggingFaceH4/MATH-500 split=test",
        licence="MIT as stated for MATH",
        checker="mathematics",
    ),
    Description(
        name=JSONL,
        about="your own: JSON lines with a question and an answer a row",
        schema="question, answer; other names by question_field and answer_field",
        source="path=FILE",
        licence="yours",
        checker="answer_kind: number, math or letter",
    ),
    Description(
        name=f"{REASONING_GYM}NAME",
        about="generated problems of the reasoning-gym library; a mix of them is reasoning_gym:mix",
        schema="none: made from options, size and seed",
        source="the package reasoning-gym",
        licence="Apache-2.0 as stated",
        checker="the data set's own",
    ),
)
