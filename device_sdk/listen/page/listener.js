// The microphone, and the socket that its sound goes to.
import { socketUrl } from "./server.js";

export class Listener {
  constructor(heard) {
    this.heard = heard;
    this.on = false;
  }

  async start() {
    if (!navigator.mediaDevices?.getUserMedia) {
      throw new Error("This page may use no microphone: open it at localhost, or over https.");
    }
    const stream = await navigator.mediaDevices.getUserMedia({ audio: { channelCount: 1, echoCancellation: true } });
    const context = new AudioContext();
    await context.audioWorklet.addModule("microphone.js");
    const socket = new WebSocket(socketUrl(Math.round(context.sampleRate)));
    socket.binaryType = "arraybuffer";
    const worklet = new AudioWorkletNode(context, "microphone", { numberOfOutputs: 0 });
    worklet.port.onmessage = ({ data }) => {
      if (socket.readyState === WebSocket.OPEN && socket.bufferedAmount < 1 << 20) socket.send(data);
    };
    context.createMediaStreamSource(stream).connect(worklet);
    socket.onmessage = ({ data }) => this.take(JSON.parse(data));
    socket.onclose = () => this.stop();
    Object.assign(this, { stream, context, socket, on: true });
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
    this.stream.getTracks().forEach((track) => track.stop());
    if (this.socket.readyState === WebSocket.OPEN) {
      const last = new Promise((resolve) => { this.ended = resolve; });
      this.socket.send(JSON.stringify({ end: true }));
      await Promise.race([last, new Promise((resolve) => setTimeout(resolve, 5000))]);
    }
    this.socket.close();
    await this.context.close();
  }
}
