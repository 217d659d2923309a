// Poll data while a view is open and its page is visible; for a past moment, request it once per moment.

const BUSY = "E205"; // another request is being answered, or the log is still being read
const AGAIN = 1500;

// `ask` returns a promise; `drawn` gets its value, `failed` its error. `again` asks at once, `moved` if the moment has changed.
export function follow(api, every, ask, drawn, failed) {
  let left = false;
  let wanted = 0;
  let turn = 0;
  let at = api.at();
  api.onLeave(() => { left = true; clearTimeout(wanted); });

  async function again() {
    clearTimeout(wanted);
    const mine = (turn += 1);
    let wait = api.at() === null ? every : 0;
    if (!document.hidden || mine === 1) {
      try {
        const told = await ask();
        if (left || mine !== turn) return;
        drawn(told);
      } catch (error) {
        if (left || mine !== turn) return;
        failed(error);
        if (error.code === BUSY) wait = AGAIN;
      }
    }
    if (wait && !left) wanted = setTimeout(again, wait);
  }

  again();
  return { again, moved() { if (api.at() !== at) { at = api.at(); again(); } } };
}

export const said = (error) => [error.message, error.hint].filter(Boolean).join(". ");
