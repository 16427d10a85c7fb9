"use strict";
// The sample browser: one prompt and its responses. Everything from a model is set as text, never as HTML.
(function () {
  const view = document.getElementById("sample-view");
  if (!view) return;
  const { rounds, shown, total, removed } = DATA.samples;
  const note = document.getElementById("samples-note");
  const filled = rounds.filter((entry) => entry.groups.length);
  if (!filled.length) {
    note.textContent = "The run left no samples in groups/.";
    document.querySelector("#samples .picker").hidden = true;
    return;
  }
  note.textContent = shown < total ? `${shown} of ${total} groups are in this page; all of them are in groups/.` : `All ${total} groups.`;
  if (removed) note.textContent += ` The samples of the first ${removed} rounds were removed (retention.groups).`;
  const roundSelect = document.getElementById("sample-round");
  const groupSelect = document.getElementById("sample-group");
  const format = (value, digits) => (value === null ? "none" : value.toFixed(digits));

  function prompt(group) {
    const box = node("div", "prompt");
    const filtered = group.filtered ? `, not trained: ${group.filtered}` : "";
    box.append(node("div", "muted", `Prompt of ${group.group}, weight version ${group.version}${filtered}`), node("pre", "", group.prompt));
    return box;
  }

  function sample(entry) {
    const box = node("article", "sample");
    const head = node("div", "sample-head");
    head.append(node("span", `verdict ${entry.reward > 0 ? "ok" : "bad"}`, `reward ${format(entry.reward, 2)}`));
    const facts = [["advantage", format(entry.advantage, 2)], ["tokens", entry.tokens], ["ended by", entry.finish], ["verdict", entry.status]];
    if (entry.extracted) facts.push(["answer", entry.extracted]);
    entry.parts.forEach(([label, value]) => facts.push([`part ${label}`, format(value, 2)]));
    facts.forEach(([label, value]) => {
      const fact = node("span", "", `${label} `);
      fact.append(node("b", "", value));
      head.append(fact);
    });
    box.append(head, node("pre", "", entry.text || "(no text)"));
    if (entry.reason) box.append(node("div", "sample-reason muted", entry.reason));
    return box;
  }

  function showGroup() {
    const group = filled[roundSelect.selectedIndex].groups[groupSelect.selectedIndex];
    const grid = node("div", "sample-grid");
    grid.append(...group.samples.map(sample));
    view.replaceChildren(prompt(group), grid);
  }

  function showRound() {
    options(groupSelect, filled[roundSelect.selectedIndex].groups.map((group, index) => {
      const scored = group.samples.map((entry) => entry.reward).filter((value) => value !== null);
      const mean = scored.length ? scored.reduce((sum, value) => sum + value, 0) / scored.length : null;
      return [index, `${group.order} (reward ${format(mean, 2)})`];
    }));
    showGroup();
  }

  options(roundSelect, filled.map((entry, index) => [index, String(entry.round)]));
  roundSelect.selectedIndex = filled.length - 1;
  roundSelect.addEventListener("change", showRound);
  groupSelect.addEventListener("change", showGroup);
  showRound();
})();
