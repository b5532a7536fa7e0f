// Runs beside the page: hands over samples as 16 bits, some 40 ms at a time.
class Microphone extends AudioWorkletProcessor {
  constructor() {
    super();
    this.held = new Int16Array(Math.round(sampleRate / 25));
    this.count = 0;
  }

  process([[channel]]) {
    for (const value of channel ?? []) {
      this.held[this.count++] = Math.round(32767 * Math.max(-1, Math.min(1, value)));
      if (this.count === this.held.length) {
        this.port.postMessage(this.held.slice().buffer);
        this.count = 0;
      }
    }
    return true;
  }
}

registerProcessor("microphone", Microphone);
