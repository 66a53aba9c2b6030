"use strict";
// Copying, filters and sorting, nothing else: without them everything is there to read.
for (const box of document.querySelectorAll(".cmd")) {
  const code = box.querySelector("code");
  const button = document.createElement("button");
  button.type = "button";
  button.textContent = "Copy";
  button.setAttribute("aria-label", `Copy ${code.textContent}`);
  button.addEventListener("click", async () => {
    let done = true;
    try {
      await navigator.clipboard.writeText(code.textContent);
    } catch {
      // Browsers may refuse the clipboard to a file: what is selected can be copied anyway.
      getSelection().selectAllChildren(code);
      done = document.execCommand("copy");
    }
    button.textContent = done ? "Copied" : "Selected: press Ctrl+C";
  });
  box.append(button);
}
for (const box of document.querySelectorAll("[data-filters]")) {
  const rows = [...document.getElementById(box.dataset.filters).tBodies[0].rows];
  const words = box.querySelector("input[type=search]");
  const kinds = [...box.querySelectorAll("input[type=checkbox]")];
  const choices = [...box.querySelectorAll("select")];
  const count = box.querySelector("output");
  const show = () => {
    const wanted = words.value.trim().toLowerCase();
    const on = new Set(kinds.filter((one) => one.checked).map((one) => one.value));
    const chosen = choices.filter((one) => one.value);
    const fits = (row) =>
      row.cells[0].textContent.toLowerCase().includes(wanted) &&
      on.has(row.dataset.kind) &&
      chosen.every((one) => row.cells[one.dataset.column].textContent.split(", ").includes(one.value));
    for (const row of rows) row.hidden = !fits(row);
    count.value = `${rows.filter((row) => !row.hidden).length} of ${rows.length} shown`;
  };
  box.hidden = false;
  for (const event of ["input", "change"]) box.addEventListener(event, show);
  show();
}
const value = (row, column) => {
  const cell = row.cells[column];
  const data = cell.querySelector("data");
  return data ? Number(data.value) : cell.dataset.order ? Number(cell.dataset.order) : cell.textContent.trim();
};
for (const table of document.querySelectorAll("table[data-sorts]")) {
  for (const head of table.tHead.rows[0].cells) {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...head.childNodes);
    head.append(button);
    button.addEventListener("click", () => {
      const down = head.getAttribute("aria-sort") === "ascending";
      for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
      const order = (one, other) =>
        typeof one === "number" && typeof other === "number" ? one - other : String(one).localeCompare(String(other), undefined, { numeric: true });
      const rows = [...table.tBodies[0].rows].map((row) => [value(row, head.cellIndex), row]);
      rows.sort((one, other) => (down ? -1 : 1) * order(one[0], other[0]));
      table.tBodies[0].append(...rows.map((row) => row[1]));
    });
  }
}
