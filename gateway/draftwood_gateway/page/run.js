// What has come of one completion so far; draws nothing.

export class Run {
  constructor(prompt) {
    this.prompt = prompt;
    this.rounds = [];
    // In order: { text, kind, depth, round, piece }. `text` is the token on its own; `piece` is what it adds to the
    // completion, null until that is known.
    this.tokens = [];
    this.released = 0; // tokens whose piece is known; a stop string cuts off those behind
    this.usage = null;
    this.finishReason = null;
    this.accepted = 0;
    this.proposed = 0;
    this.firstTokens = 0;
    this.draftMs = 0;
    this.verifyMs = 0;
    this.startedAt = null; // of the first token, and of the last chunk, by the page's clock
    this.lastAt = null;
    this.firstCount = 0; // tokens in the first chunk, which the clock has not seen coming
    this._unassigned = [];
    this._assigned = 0;
  }

  /** Take a chunk of the API's stream. */
  add(chunk, now) {
    if (chunk.usage) this.usage = chunk.usage;
    for (const choice of chunk.choices) this._addChoice(choice);
    if (!chunk.choices.length) return;
    if (this.startedAt === null && this.released) [this.startedAt, this.firstCount] = [now, this.released];
    this.lastAt = now;
  }

  get tokensPerSecond() {
    const seconds = (this.lastAt - this.startedAt) / 1000;
    return seconds > 0 ? (this.released - this.firstCount) / seconds : null;
  }

  /** Rounds after prefill. */
  get decodingRounds() {
    return this.rounds.length - this.firstTokens;
  }

  /** Mean tokens a round, as in the API's usage. */
  get tokensPerRound() {
    return this.decodingRounds ? (this.released - this.firstTokens) / this.decodingRounds : null;
  }

  /** Mean milliseconds a round. */
  meanMs(total) {
    return this.decodingRounds ? total / this.decodingRounds : null;
  }

  _addChoice(choice) {
    const { token_ids: ids, text_ends: ends, rounds } = choice.draftwood;
    for (const round of rounds) this._addRound(round);
    this._unassigned.push(...choice.text); // by Unicode characters, as `text_ends` counts
    ids.forEach((_, index) => {
      const characters = this._unassigned.splice(0, ends[index] - this._assigned);
      this._assigned = ends[index];
      this.tokens[this.released++].piece = characters.join("");
    });
    this.finishReason = choice.finish_reason;
  }

  _addRound(report) {
    const round = { ...report, index: this.rounds.length, firstToken: this.tokens.length };
    this.rounds.push(round);
    const last = round.texts.length - 1;
    round.texts.forEach((text, i) => {
      const accepted = i < last;
      const kind = accepted ? "accepted" : round.kind === "speculative" ? "bonus" : round.kind;
      this.tokens.push({ text, kind, depth: accepted ? i + 1 : 0, round: round.index, piece: null });
    });
    if (round.kind === "prefill") {
      this.firstTokens += 1;
      return;
    }
    this.accepted += last;
    this.proposed += round.tree.token_ids.length;
    this.draftMs += round.draft_wait_ms;
    this.verifyMs += round.verify_ms;
  }
}

/** A token's text with what can't be seen made visible. */
export function visible(text) {
  return text.replaceAll("\r", "␍").replaceAll("\n", "⏎").replaceAll("\t", "⇥").replaceAll(" ", "·");
}
