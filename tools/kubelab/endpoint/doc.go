// Package endpoint is what the API server meets when it dials the kubelets of a
// lab: logs, exec, attach and port-forward. No container exists, so everything
// behind the real streaming protocols is a stand-in that answers predictably:
//
//   - logs: a first line that names the container, then one a second, and a last
//     one with the exit code. They follow from the pod's status; see Run.
//   - exec: its arguments as the first line, then whatever it is sent. A command
//     `exit N` ends at once with code N. On a terminal, Ctrl-C ends with 130,
//     Ctrl-D with 0, and each new size is told.
//   - attach: whatever it is sent; without input, the log from now on.
//   - port-forward: every port echoes.
//
// One server stands for all nodes and looks each pod up. A stream ends when its
// container or pod does; the kubelet of a stopped node hangs up without a word.
// Only the API server's certificate is let in. Streams live as long as Serve.
package endpoint
