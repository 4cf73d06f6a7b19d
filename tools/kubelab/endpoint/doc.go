// Package endpoint is the simulated kubelet API of a lab: logs, exec, attach and port-forward. No container
// exists, so everything behind the real streaming protocols is a fake with deterministic responses:
//
//   - logs: a first line that names the container, then one a second, and a last
//     one with the exit code. They follow from the pod's status; see Run.
//   - exec: its arguments as the first line, then whatever it is sent. A command
//     `exit N` ends at once with code N. On a terminal, Ctrl-C ends with 130,
//     Ctrl-D with 0, and each new terminal size is printed.
//   - attach: echoes its input; without input, it follows the log.
//   - port-forward: every port echoes.
//
// One server stands for all nodes and looks each pod up. A stream ends when its container or pod does; the
// kubelet of a stopped node closes the connection. Only the API server's client certificate is accepted.
// Streams live as long as Serve.
package endpoint
