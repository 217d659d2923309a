// The address of a page that is one file: the path follows the `#`.

const parts = () => (location.hash.slice(1) || "/").split("?");

export const path = () => parts()[0];
export const moment = () => Number(new URLSearchParams(parts()[1]).get("at"));
export const go = (to) => history.pushState(null, "", `#${to}`);
export const stay = (to) => history.replaceState(null, "", `#${to}`);
