// Package controlplane starts the real parts of a Kubernetes control plane in
// this process: etcd, kube-apiserver, kube-controller-manager, kube-scheduler.
//
// Each Start function returns as soon as the part is launched; Part.Done
// reports its end, which is an error unless the part was asked to stop. Readiness is
// judged from outside, through the API. The parts keep process-wide
// state (feature gates, metrics, klog), so one process runs one lab.
//
// etcd listens on a unix socket only the owner can reach; the API server on
// 127.0.0.1; the two others serve nothing.
package controlplane
