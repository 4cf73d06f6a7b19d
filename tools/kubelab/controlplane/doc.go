// Package controlplane starts the real parts of a Kubernetes control plane in
// this process: etcd, kube-apiserver, kube-controller-manager, kube-scheduler.
//
// StartEtcd returns when etcd serves, the other Start functions as soon as the part is launched: check their
// readiness through the API. Part.Done reports a part's end, which is an error unless it was asked to stop. The
// parts keep process-wide state (feature gates, metrics, klog), so one process runs one lab.
//
// etcd listens on a unix socket only the owner can reach; the API server on 127.0.0.1; the other two have no
// listener.
package controlplane
