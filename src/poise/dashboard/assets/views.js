// All views, in the order of the navigation. A view is a module that exports
//   title   its name
//   path    its path; it also handles all paths below
//   show(element, state, api)   draw into `element`; may return a function that is called after each change with
//                               the state and the changed parts (`time` each second)
// `api` has `data(name, parameters)`, which calls the server's data function of that name (`poise.dashboard.data`),
// `rest`, the parts of the path below the view's own, `go(path)`, `onLeave(function)`, and `at()`: the past moment
// shown, in seconds since 1970, or null. `state` and, where possible, `data` are of that moment.

import * as now from "./views/now.js";
import * as queue from "./views/queue.js";
import * as jobs from "./views/jobs.js";
import * as nodes from "./views/nodes.js";
import * as services from "./views/services.js";
import * as training from "./views/training.js";
import * as timeline from "./views/timeline.js";
import * as decisions from "./views/decisions.js";
import * as incidents from "./views/incidents.js";
import * as rules from "./views/rules.js";
import * as energy from "./views/energy.js";
import * as whatIf from "./views/what-if.js";

export const VIEWS = [now, queue, jobs, nodes, services, training, timeline, decisions, incidents, rules, energy, whatIf];
