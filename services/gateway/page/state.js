const shown = document.getElementById("state")
const show = state => {
  const starts = state === "creation_requested" || state === "starting"
  shown.textContent = state.replaceAll("_", " ")
  document.getElementById("starts").hidden = !starts
  for (const form of document.forms) form.hidden = starts
}
show(shown.textContent)
const states = new EventSource("/.lockstep/state")
states.onmessage = event => {
  const {state, running} = JSON.parse(event.data)
  show(state)
  if (running) location.reload()
}
states.addEventListener("ended", () => location.reload())
states.onerror = () => { if (states.readyState === EventSource.CLOSED) location.reload() }
