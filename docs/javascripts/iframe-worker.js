// Pages that are opened from the disk may start no worker: the search runs in a hidden frame there instead.
if (location.protocol === "file:") {
  window.IFrameWorker = class extends EventTarget {
    constructor(url) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      document.body.append(frame);
      this.frame = frame.contentWindow;
      this.frame.postMessage = data => {
        const event = new MessageEvent("message", {data});
        this.dispatchEvent(event);
        this.onmessage?.(event);
      };
      this.frame.importScripts = (...urls) => Promise.all(urls.map(source => this.load(source)));
      this.ready = this.load(url);
    }
    load(url) {
      return new Promise((resolve, reject) => {
        const script = this.frame.document.createElement("script");
        Object.assign(script, {src: url, async: false, onload: resolve, onerror: reject});
        this.frame.document.body.append(script);
      });
    }
    postMessage(data) {
      this.ready.then(() => this.frame.dispatchEvent(new this.frame.MessageEvent("message", {data})));
    }
    terminate() { this.frame.frameElement.remove(); }
  };
  window.Worker = window.IFrameWorker;
}
