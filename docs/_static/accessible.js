// What axe says of the pages that the theme and the notebooks' extension make: labels that hide the text of a button, and heads of
// tables without text.
for (const e of document.querySelectorAll(".version-switcher__button, details summary")) e.removeAttribute("aria-label");
for (const e of document.querySelectorAll(".search-button-field")) e.setAttribute("aria-label", e.textContent.replace(/\s+/g, " ").trim());
for (const head of document.querySelectorAll("th")) {
  if (head.textContent.trim()) continue;
  const cell = document.createElement("td");
  cell.className = head.className;
  head.replaceWith(cell);
}
