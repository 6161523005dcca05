"use strict";

// The value a cell is sorted by; null where there is none, because empty cells stay last both ways.
function valueOf(row, column, kind) {
  const text = row.cells[column].textContent.trim();
  if (kind !== "number") return text === "" ? null : text;
  if (text === "inf" || text === "-inf") return text === "inf" ? Infinity : -Infinity;
  const number = Number(text);
  return text === "" || Number.isNaN(number) ? null : number;
}

function compare(a, b, sign) {
  if (a === null || b === null) return (a === null) - (b === null);
  if (typeof a === "string") return sign * a.localeCompare(b);
  return a === b ? 0 : sign * (a < b ? -1 : 1);
}

function sortBy(header) {
  const body = header.closest("table").tBodies[0];
  const way = header.getAttribute("aria-sort") === "ascending" ? "descending" : "ascending";
  const sign = way === "ascending" ? 1 : -1;
  const keyed = Array.from(body.rows, (row) => [valueOf(row, header.cellIndex, header.dataset.kind), row]);
  keyed.sort(([a], [b]) => compare(a, b, sign));
  body.append(...keyed.map(([, row]) => row));
  for (const other of header.parentElement.cells) other.setAttribute("aria-sort", "none");
  header.setAttribute("aria-sort", way);
}

for (const button of document.querySelectorAll("table.sortable th button")) {
  button.addEventListener("click", () => sortBy(button.closest("th")));
}

// A link into something folded unfolds it.
function unfoldTarget() {
  const target = document.getElementById(decodeURIComponent(location.hash.slice(1)));
  if (target === null) return;
  for (let fold = target.closest("details"); fold !== null; fold = fold.parentElement.closest("details")) fold.open = true;
  target.scrollIntoView();
}

for (const button of document.querySelectorAll("button.unfold")) {
  button.hidden = false;
  button.addEventListener("click", () => {
    for (const fold of document.querySelectorAll("details")) fold.open = true;
  });
}
// On paper nothing can be unfolded.
const unfoldedForPaper = [];
window.addEventListener("beforeprint", () => {
  for (const fold of document.querySelectorAll("details.fold:not([open])")) {
    fold.open = true;
    unfoldedForPaper.push(fold);
  }
});
window.addEventListener("afterprint", () => {
  for (const fold of unfoldedForPaper.splice(0)) fold.open = false;
});
window.addEventListener("hashchange", unfoldTarget);
unfoldTarget();
