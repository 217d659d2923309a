// Where the page is: the path of its view, and the moment that is shown. A kept page has another such module (`kept/place.js`).

export const path = () => location.pathname;
export const moment = () => Number(new URLSearchParams(location.search).get("at"));
export const go = (to) => history.pushState(null, "", to);
export const stay = (to) => history.replaceState(null, "", to);
