// Package kubelet simulates the kubelets of a lab. kwok renews the leases and updates the pods; this package
// computes the next status.
//
// Two pure functions decide: NextPodStatus moves every container of a pod one step, NodeStatus describes a
// healthy node. Stages connects them to kwok: which pods need a step and after how long is a jq expression over
// the pod, what the step is comes from here. All state is in the pod, so a restarted lab continues.
//
// A pod selects a fault with an annotation, a container with its image name; see Fault. A pod without a fault
// runs at its first step. No image is pulled, no process runs, and nothing listens on a pod's address; package
// endpoint serves kubectl logs, exec, attach and port-forward.
package kubelet
