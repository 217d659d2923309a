// The address of the page: the path of its view, and the moment shown. Recorded pages use `recorded/place.js` instead.

export const path = () => location.pathname;
export const moment = () => Number(new URLSearchParams(location.search).get("at"));
export const go = (to) => history.pushState(null, "", to);
export const stay = (to) => history.replaceState(null, "", to);
