// The completion, each token marked by how it came.

import { span } from "./svg.js";

export class TextView {
  constructor(host, onSelect) {
    this._host = host;
    this._spans = [];
    host.addEventListener("click", (event) => {
      const token = event.target.closest(".token");
      if (token) onSelect(Number(token.dataset.round));
    });
  }

  /** Start over with a prompt. */
  reset(prompt) {
    this._spans = [];
    this._host.replaceChildren(span({ class: "prompt" }, prompt));
  }

  /** Append the tokens that are new. */
  update(run) {
    // Somebody who has scrolled up reads on there.
    const atEnd = this._host.scrollHeight - this._host.scrollTop - this._host.clientHeight < 40;
    const added = run.tokens.slice(this._spans.length, run.released).map(tokenSpan);
    this._spans.push(...added);
    this._host.append(...added);
    if (atEnd && added.length) this._host.scrollTop = this._host.scrollHeight;
  }

  /** Mark the tokens of a round and fade what came later; null shows all alike. */
  select(round) {
    for (const token of this._spans) {
      const own = Number(token.dataset.round);
      token.classList.toggle("current", own === round);
      token.classList.toggle("later", round !== null && own > round);
    }
    this._scrollTo(this._spans.find((token) => Number(token.dataset.round) === round));
  }

  /** Not scrollIntoView, which would move the page as well. */
  _scrollTo(token) {
    if (!token) return;
    const [shown, view] = [token.getBoundingClientRect(), this._host.getBoundingClientRect()];
    if (shown.top < view.top || shown.bottom > view.bottom) {
      this._host.scrollTop += shown.top - view.top - view.height / 3;
    }
  }
}

function tokenSpan(token) {
  const said = { prefill: "from prefill", plain: "plain step", bonus: "the target’s own" };
  const how = token.depth ? `accepted at depth ${token.depth}` : said[token.kind];
  return span(
    {
      class: "token",
      "data-kind": token.kind,
      "data-depth": token.depth,
      "data-round": token.round,
      title: `${how}, round ${token.round}`,
    },
    token.piece,
  );
}
