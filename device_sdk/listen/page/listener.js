// The microphone, and the socket that its sound goes to.
import { socketUrl } from "./server.js";

async function microphone(take) {
  if (!navigator.mediaDevices?.getUserMedia) {
    throw new Error("This page may use no microphone: open it at localhost, or over https.");
  }
  const stream = await navigator.mediaDevices.getUserMedia({ audio: { channelCount: 1, echoCancellation: true } });
  const context = new AudioContext();
  await context.audioWorklet.addModule("microphone.js");
  const worklet = new AudioWorkletNode(context, "microphone", { numberOfOutputs: 0 });
  worklet.port.onmessage = ({ data }) => take(data);
  context.createMediaStreamSource(stream).connect(worklet);
  const close = () => {
    stream.getTracks().forEach((track) => track.stop());
    return context.close();
  };
  return { rate: Math.round(context.sampleRate), close };
}

export class Recorder {
  on = false;

  async start() {
    this.parts = [];
    this.source = await microphone((part) => this.parts.push(part));
    this.on = true;
  }

  async stop() {
    this.on = false;
    const { rate } = this.source;
    await this.source.close();
    return { samples: new Blob(this.parts), rate };
  }
}

export class Listener {
  constructor(heard) {
    this.heard = heard;
    this.on = false;
  }

  async start() {
    let socket;
    const source = await microphone((part) => {
      if (socket?.readyState === WebSocket.OPEN && socket.bufferedAmount < 1 << 20) socket.send(part);
    });
    socket = new WebSocket(socketUrl(source.rate));
    socket.binaryType = "arraybuffer";
    socket.onmessage = ({ data }) => this.take(JSON.parse(data));
    socket.onclose = () => this.stop();
    Object.assign(this, { source, socket, on: true });
    this.heard.state(true);
  }

  take(message) {
    if (message.type === "error") this.heard.error(message.error);
    else this.heard[message.type]?.(message);
    if (message.type === "end") this.ended?.();
  }

  async stop() {
    if (!this.on) return;
    this.on = false;
    this.heard.state(false);
    await this.source.close();
    if (this.socket.readyState === WebSocket.OPEN) {
      const last = new Promise((resolve) => { this.ended = resolve; });
      this.socket.send(JSON.stringify({ end: true }));
      await Promise.race([last, new Promise((resolve) => setTimeout(resolve, 5000))]);
    }
    this.socket.close();
  }
}
