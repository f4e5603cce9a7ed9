// @ts-check
"use strict";
/**
 * The address of what is shown: `#view?name=value&...`. It opens the same view again, in another tab too; what is as at
 * the beginning is left out.
 */

/** @type {Map<string, {column: string, descending: boolean}>} By which column each table is sorted. */
const sortOf = new Map();

/** The values as text; those that say nothing are left out, and commas and slashes stay readable. @param {Record<string, any>} values */
function addressText(values) {
  const told = Object.entries(values).filter(([, value]) => !["", null, undefined, false].includes(value));
  const text = new URLSearchParams(
    told.map(([name, value]) => [name, value === true ? "1" : String(value)]),
  ).toString();
  return text ? "?" + text.replaceAll("%2C", ",").replaceAll("%2F", "/") : "";
}

/** The name of a view in an address, and what it says of it. @param {string} hash @returns {{name: string, values: URLSearchParams}} */
function readAddress(hash) {
  const [name, text = ""] = hash.slice(1).split("?");
  return { name, values: new URLSearchParams(text) };
}

/** The tables of a view that are sorted. @param {HTMLElement} section */
const sortedTables = (section) =>
  Object.fromEntries(
    tablesOf(section).flatMap((name) => {
      const sort = sortOf.get(name);
      return sort ? [["sort." + name, (sort.descending ? "-" : "") + sort.column]] : [];
    }),
  );
/** @param {HTMLElement} section @returns {string[]} */
const tablesOf = (section) =>
  Array.from(
    section.querySelectorAll("[data-table]"),
    (table) => /** @type {HTMLElement} */ (table).dataset.table || "",
  );

/** Sort the tables of a view as an address says. @param {HTMLElement} section @param {URLSearchParams} values */
function sortTables(section, values) {
  for (const name of tablesOf(section)) sortOf.delete(name);
  for (const [key, value] of values)
    if (key.startsWith("sort."))
      sortOf.set(key.slice(5), { column: value.replace(/^-/, ""), descending: value.startsWith("-") });
  for (const table of section.querySelectorAll("[data-table]")) table.dispatchEvent(new Event("sorted"));
}

/** So long does a state last at least that gets an entry of the history. */
const PAUSE_MS = 150;
/** Keeps the address up to date: remember() adds an entry of the history, replace() changes the last one.
 * @param {() => string} current what the address should be @param {(address: {name: string, values: URLSearchParams}) => void} open */
function followAddress(current, open) {
  // A page in a frame of a notebook has no address.
  if (location.protocol === "about:") return { remember: () => {}, replace: () => {} };
  let timer = 0;
  const { dataset } = document.documentElement;
  /** Marks that the page shows what the address says; who drives the page waits for that. */
  const kept = () => {
    clearTimeout(timer);
    dataset.address = location.hash;
  };
  const remember = () => {
    if (current() !== location.hash) history.pushState(null, "", current());
    kept();
  };
  const replace = () => {
    history.replaceState(null, "", current());
    kept();
  };
  for (const name of ["click", "input", "change", "keyup", "pointerup", "wheel"])
    document.addEventListener(
      name,
      () => {
        clearTimeout(timer);
        delete dataset.address;
        timer = setTimeout(remember, PAUSE_MS);
      },
      { capture: true, passive: true },
    );
  window.addEventListener("popstate", () => {
    open(readAddress(location.hash));
  });
  return { remember, replace };
}
