// Search without a server: `PAGES` above holds [place, title, text] of every section. All words have to be there; a
// word in the title counts most, and sections are shown best first.
const SHOWN = 30;
const AROUND = 80;

function found(query) {
  const words = query.toLowerCase().split(/\s+/).filter(Boolean);
  if (!words.length) return [];
  const hits = [];
  for (const [place, title, text] of PAGES) {
    const inTitle = title.toLowerCase();
    const inText = text.toLowerCase();
    let score = 0;
    for (const word of words) {
      const here = (inTitle.includes(word) ? 10 : 0) + Math.min(inText.split(word).length - 1, 5);
      if (!here) { score = 0; break; }
      score += here;
    }
    if (score) hits.push({ place, title, excerpt: excerpt(text, inText, words), score });
  }
  return hits.sort((a, b) => b.score - a.score).slice(0, SHOWN);
}

function excerpt(text, lower, words) {
  const at = Math.max(0, Math.min(...words.map((word) => lower.indexOf(word)).filter((place) => place >= 0), text.length));
  const from = Math.max(0, at - AROUND);
  return (from ? "…" : "") + text.slice(from, at + 2 * AROUND) + (at + 2 * AROUND < text.length ? "…" : "");
}

function show(results) {
  const list = document.getElementById("mkdocs-search-results");
  list.replaceChildren(...results.map(({ place, title, excerpt }) => {
    const entry = document.createElement("article");
    const heading = entry.appendChild(document.createElement("h3"));
    const link = heading.appendChild(document.createElement("a"));
    link.href = base_url.replace(/\/?$/, "/") + place;
    link.textContent = title;
    entry.appendChild(document.createElement("p")).textContent = excerpt;
    return entry;
  }));
  if (!results.length) list.textContent = list.dataset.noResultsText;
}

if (typeof document !== "undefined") {
  const field = document.getElementById("mkdocs-search-query");
  field.addEventListener("input", () => show(found(field.value)));
  field.form.addEventListener("submit", (event) => event.preventDefault());
  document.getElementById("mkdocs_search_modal").addEventListener("shown.bs.modal", () => field.focus());
}
