// Package dns serves the names of the Services of a lab, as the cluster's DNS does, by UDP on this machine.
//
// The names are NAME.NAMESPACE.svc and NAME.NAMESPACE.svc.cluster.local. The addresses are those at which the processes
// of the Service's ready pods listen (package process). No kube-proxy translates ports: the ports of a Service must be
// those of its pods. A Service without such a pod has no address.
package dns
