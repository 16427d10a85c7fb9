r"""What stands around a whole answer and says nothing: `\mathbf{...}`, `{\color{red} ...}`, `\therefore`, `\text{Answer: }`."""

import re

from common.rewards import latex, units

_COMMANDS = "mbox|hbox|mathbf|boldsymbol|bm|mathrm|mathit|mathsf|textbf|textit|emph|underline|text"
_WRAPPED = re.compile(rf"\\(?:{_COMMANDS})\s*\{{(.*)\}}", re.DOTALL)
_COLOURED = re.compile(r"(?:\\(?:text)?color\s*\{\w+\}\s*\{(.*)\}|\{\s*\\color\s*\{\w+\}(.*)\}|\\color\s*\{\w+\}(.*))", re.DOTALL)
_LINE = re.compile(r"\\begin\{(aligned|align\*?|split|gathered)\}((?:(?!\\\\|\\begin).)*)\\end\{\1\}", re.DOTALL)
_LEAD = re.compile(
    r"(?:=|[a-z]\s*\\in\s*(?=\\\{)|\\therefore(?![a-zA-Z])|\\implies(?![a-zA-Z])|\\Rightarrow(?![a-zA-Z])|\\,|\s|\\text\s*\{[\s$\\]*\})+"
)
_ABOUT = re.compile(r"(?:\\text\s*\{\s*(?:approximately|about|approx\.?|roughly)\s*\})\s*")
_LABEL = re.compile(
    r"(?:((?i:(?:the )?(?:final |correct )?answer is)(?![a-zA-Z])):?"
    r"|\\text(?:bf|rm)?\s*\{\s*([a-zA-Z ]{2,40})(?::|\bis)\s*\}|([a-zA-Z]{2}[a-zA-Z ]{0,38}):(?=\s*[^\s:]))\s*"
)
_MAX_LAYERS = 20


def bare(text: str) -> str:
    """`text` without the wrappers around all of it, before `latex.plain`."""
    return layers(text)[-1]


def layers(text: str) -> list[str]:
    """`text`, and what is left of it as one wrapper after the other is taken off."""
    found = [text]
    while len(found) <= _MAX_LAYERS and (inside := _peeled(found[-1].strip())) != found[-1]:
        found.append(inside)
    return found


def _peeled(text: str) -> str:
    """Without the outermost one."""
    for pattern in (_WRAPPED, _COLOURED):
        match = pattern.fullmatch(text)
        inside = next((group for group in match.groups() if group is not None), None) if match else None
        if inside is not None and latex.is_balanced(inside):
            return inside.strip()
    if match := _LINE.fullmatch(text):
        return match[2].replace("&", "").strip()
    for pattern in (_LEAD, _ABOUT, _LABEL):
        match = pattern.match(text)
        if match and match.end() < len(text) and not _is_refused(match):
            return text[match.end() :].strip()
    return text


def _is_refused(match: re.Match[str]) -> bool:
    """Whether the words of a label deny, hedge, count or name a letter."""
    label = " ".join(group for group in match.groups() if group)
    return units.is_another(label) or any(
        units.is_refused(word) or len(word) == 1 for word in label.lower().split() if word != "is"
    )
