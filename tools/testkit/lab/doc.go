// Package lab starts a real Kubernetes control plane, kubelab, as a child process for tests and for a single
// machine. It does not use the Kubernetes API.
//
// Start returns when the lab is ready. The lab ends with Stop, and also when this process dies in any way,
// because it reads a pipe from this process. Temporary data is then removed. A lab that ends by itself closes
// Done.
//
// The program is taken from LOCKSTEP_KUBELAB, or built from tools/kubelab of the repository into bin/kubelab,
// once for all processes and again only when its sources or the Go version change. The first build on a machine
// takes minutes and reports progress; it needs the go command. Without the repository or the go command, the program is
// one beside this program, or in PATH.
package lab
