// The terminal of a workspace: joins xterm.js with the WebSocket of the gateway.
"use strict"

document.title = location.hostname.split(".")[0].replace(/^\d+--/, "")
const terminal = new Terminal({
  cursorBlink: true, scrollback: 10000, fontFamily: "ui-monospace, Menlo, Consolas, 'DejaVu Sans Mono', monospace",
  theme: {background: "#12161d", foreground: "#e6e9ef"},
})
const fit = new FitAddon.FitAddon()
terminal.loadAddon(fit)
terminal.open(document.getElementById("terminal"))
fit.fit()

const encoder = new TextEncoder()
const ended = document.getElementById("ended")
let socket = null

function isOpen() {
  return socket !== null && socket.readyState === WebSocket.OPEN
}

function sendSize() {
  if (isOpen()) socket.send(JSON.stringify({columns: terminal.cols, rows: terminal.rows}))
}

function connect() {
  ended.hidden = true
  socket = new WebSocket("wss://" + location.host + "/.lockstep/terminal/socket")
  socket.binaryType = "arraybuffer"
  socket.onopen = () => {
    sendSize()
    terminal.focus()
  }
  socket.onmessage = event => terminal.write(new Uint8Array(event.data))
  // A page that connects again by itself would keep its workspace busy: the person decides.
  socket.onclose = event => {
    document.getElementById("reason").textContent = event.reason || "The connection has ended."
    ended.hidden = false
  }
}

// isRefused is false, too, if nobody answers.
function isRefused() {
  return fetch(location.href, {cache: "no-store"}).then(response => !response.ok, () => false)
}

terminal.onData(data => { if (isOpen()) socket.send(encoder.encode(data)) })
terminal.onBinary(data => { if (isOpen()) socket.send(Uint8Array.from(data, c => c.charCodeAt(0))) })
terminal.onResize(sendSize)
// The bar at the bottom takes room, too.
new ResizeObserver(() => fit.fit()).observe(document.getElementById("terminal"))
document.getElementById("again").addEventListener("click", async () => {
  if (await isRefused()) location.reload() // to a page that says why, and can start the workspace or sign in
  else connect()
})
connect()
