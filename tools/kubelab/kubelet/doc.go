// Package kubelet plays the nodes of a lab: kwok holds the node leases and moves
// the pods, and this package tells it what a kubelet would report next.
//
// Two pure functions decide: NextPodStatus moves every container of a pod one
// step, NodeStatus describes a healthy node. Stages connects them to kwok: which
// pods need a step and after how long is a jq expression over the pod, what the
// step is comes from here. Nothing is remembered outside the pod, so a lab that
// restarts goes on where it was.
//
// Faults are asked for per pod by annotation or per container by image name;
// see Fault. A pod without one runs at its first step. No image is pulled, no
// process runs, and nothing listens on a pod's address; what kubectl logs, exec,
// attach and port-forward meet is in package endpoint.
package kubelet
