// Search from files, without a server: the index is a script that is loaded when the search field first gets the focus.
// It calls `searchable` with [place, page title, section title, text, weight] of every section. Words match by their
// stems; the last word of a query may still be typed and matches beginnings. Sections rank by BM25, with the words of
// titles counting more and sections that hold all words of the query before others.
"use strict";

const SHOWN = 12;
const PER_PAGE = 2;
const AROUND = 70;
const SATURATION = 1.2;
const IN_SECTION_TITLE = 3;
const IN_PAGE_TITLE = 2;
const BY_SYNONYM = 0.3;
const BY_BEGINNING = 0.6;
const STOP = new Set(`a an and are as at be been by can did do does for from has have how i if in is it its me my no not of on
  or so than that the their them then there they this to was what when where which who why will with without you
  your`.split(/\s+/));
const SYNONYMS = [
  "gpu cuda device accelerator card", "container docker podman apptainer singularity image", "sweep array grid hyperparameter",
  "after dependency depend afterok", "machine node server host worker", "log output stdout stderr", "walltime timeout limit",
  "retry rerun again restart", "memory ram oom", "copy upload sync", "cancel kill stop abort", "deadline due",
].map((line) => line.split(" ").map(stem));

const sections = [];
const stems = new Map(); // word → stem, of every word that occurs
const postings = new Map(); // stem → Map(section → how often)
let wordsPerSection = 0;

function stem(word) {
  let found = word.replace(/['’]s?$/, "");
  if (found.length > 4) found = found.replace(/(?:ies|ied)$/, "y");
  if (found.length > 3) found = found.replace(/(?:(?<=s|x|z|ch|sh)es|(?<![suia])s)$/, "");
  if (found.length > 5) found = found.replace(/(?<=[st])ions?$/, "");
  if (found.length > 4) found = found.replace(/(?<=[aeiouy].*)(?:ing|ed)$/, "");
  found = found.replace(/([b-df-hj-np-tv-z])\1$/, "$1");
  return found.length > 3 ? found.replace(/e$/, "") : found;
}

// Words of Latin script; of Chinese, which has no spaces, every two characters that follow each other.
function words(text) {
  const found = [];
  for (const [part] of text.matchAll(/[\p{Script=Han}]+|[\p{L}\p{N}]+/gu)) {
    if (part.length < 2 || !/\p{Script=Han}/u.test(part)) found.push(part.toLowerCase());
    else for (let at = 0; at + 2 <= part.length; at++) found.push(part.slice(at, at + 2));
  }
  return found;
}

function known(word) {
  if (!stems.has(word)) stems.set(word, stem(word));
  return stems.get(word);
}

function searchable(pages) {
  for (const [place, page, title, text, weight] of pages) {
    const number = sections.length;
    const [inText, inTitle, inPage] = [text, title, page].map((part) => words(part).map(known));
    sections.push({
      place, page, title, text, weight, length: inText.length, titleStems: new Set(inTitle), pageStems: new Set(inPage),
    });
    wordsPerSection += inText.length;
    for (const one of [...inText, ...inTitle, ...inPage]) {
      if (!postings.has(one)) postings.set(one, new Map());
      const places = postings.get(one);
      places.set(number, (places.get(number) ?? 0) + 1);
    }
  }
  wordsPerSection /= sections.length;
}

// What a word of the query may stand for, and how much that counts.
function meanings(word, last) {
  const own = stem(word);
  const found = new Map([[own, 1]]);
  for (const group of SYNONYMS) if (group.includes(own)) for (const other of group) if (other !== own) found.set(other, BY_SYNONYM);
  if (last && word.length > 1) {
    for (const [form, one] of stems) if (form.startsWith(word) && !(found.get(one) > BY_BEGINNING)) found.set(one, BY_BEGINNING);
  }
  return found;
}

function find(query) {
  const typed = words(query);
  const meant = typed.filter((word) => !STOP.has(word));
  const asked = meant.length ? meant : typed;
  const unfinished = /[\p{L}\p{N}]$/u.test(query) ? asked.at(-1) : undefined;
  const scores = new Map(); // section → [score, words of the query that it holds]
  for (const word of new Set(asked)) {
    const best = new Map(); // section → what this word is worth there
    for (const [one, counts] of meanings(word, word === unfinished)) {
      const places = postings.get(one) ?? new Map();
      const rare = Math.log(1 + (sections.length - places.size + 0.5) / (places.size + 0.5));
      for (const [number, times] of places) {
        const section = sections[number];
        const often = times / (times + SATURATION * (0.25 + 0.75 * section.length / wordsPerSection));
        const titles = (section.titleStems.has(one) ? IN_SECTION_TITLE : 0) + (section.pageStems.has(one) ? IN_PAGE_TITLE : 0);
        best.set(number, Math.max(best.get(number) ?? 0, counts * rare * (often + titles)));
      }
    }
    for (const [number, worth] of best) {
      const [score, held] = scores.get(number) ?? [0, 0];
      scores.set(number, [score + worth, held + 1]);
    }
  }
  const all = new Set(asked).size;
  const ranked = [...scores].map(([number, [score, held]]) => [number, score * (held / all) ** 2 * sections[number].weight]);
  ranked.sort((a, b) => b[1] - a[1]);
  const perPage = new Map();
  const shown = [];
  for (const [number] of ranked) {
    const { page, place, title, text } = sections[number];
    const file = place.split("#")[0];
    perPage.set(file, (perPage.get(file) ?? 0) + 1);
    if (perPage.get(file) <= PER_PAGE) shown.push({ place, page, title, excerpt: excerpt(text, asked) });
    if (shown.length === SHOWN) break;
  }
  return shown;
}

// The text around the first word of the query, as [text, is a word of the query] pairs.
function excerpt(text, asked) {
  const wanted = new Set(asked.map(stem));
  const isAsked = (word) => wanted.has(stem(word.toLowerCase())) || word.toLowerCase().startsWith(asked.at(-1));
  const first = [...text.matchAll(/[\p{L}\p{N}]+/gu)].find(([word]) => isAsked(word))?.index ?? 0;
  const from = Math.max(0, first - AROUND);
  const cut = (from ? "…" : "") + text.slice(from, first + 2 * AROUND) + (first + 2 * AROUND < text.length ? "…" : "");
  return cut.split(/([\p{L}\p{N}]+)/u).map((part, index) => [part, index % 2 === 1 && isAsked(part)]);
}
