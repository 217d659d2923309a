// One stream for all tabs of this browser: a tab connects, and receives the state and then every change.

import { Stream } from "./stream.js";

const tabs = new Set();
let stream = null;

function tell(message) {
  for (const tab of tabs) tab.postMessage(message);
}

addEventListener("connect", ({ ports: [tab] }) => {
  tabs.add(tab);
  tab.onmessage = ({ data }) => {
    if (data === "leave") tabs.delete(tab);
    else if (data === "again") { stream.close(); stream = new Stream(tell); } // the tab opened a new link
  };
  if (stream === null) stream = new Stream(tell);
  else if (stream.ended) tab.postMessage({ kind: "end", ...stream.ended });
  else {
    tab.postMessage({ kind: "whole", state: stream.state });
    tab.postMessage({ kind: "link", up: stream.up });
  }
});
