// Package lab starts and stops a lab: control plane, kubelets, volumes and data folder.
//
// Run starts etcd, then kube-apiserver, then the rest, reports each as it becomes ready, and blocks until its
// context ends or a part fails. It stops in the opposite order within seconds. Temporary data is removed; the
// next lab removes leftovers of killed labs. Kept data brings back the same objects, certificates and, while
// its port is free, the same address.
//
// Labs are independent: ports are ephemeral on 127.0.0.1, each data folder is
// locked by the lab that uses it. One process runs one lab.
package lab
