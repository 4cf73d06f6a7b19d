// Package lab starts a real Kubernetes control plane, kubelab, as a child process
// for tests and for a single machine. It knows nothing of Kubernetes.
//
// Start returns when the lab is ready. The lab ends with Stop, and also when this
// process dies in any way, since it watches the pipe that this process holds;
// temporary data goes with it. A lab that ends by itself closes Done.
//
// The program is taken from LOCKSTEP_KUBELAB, or built from tools/kubelab of the
// repository into bin/kubelab, once for all processes and again only when its
// sources or the Go version change. The first build on a machine takes minutes
// and says how far it is; it needs the go command.
package lab
