// Command chaos runs a whole Lockstep system as separate processes, two of each service, under random load and random
// faults. Then it judges what the system published.
//
//	go run ./tools/chaos --duration 12m              # a fresh seed
//	go run ./tools/chaos --seed 7 --duration 12m     # the same faults and the same changes again
//	go run ./tools/chaos --judge DIR                 # judge a recording again
//
// The seed gives the schedule of faults and the changes of each user. When a fault hits a change depends on the
// machine.
//
// Faults are SIGKILL, SIGSTOP and cuts of the network between one replica of a service, or all, and NATS, PostgreSQL,
// Kubernetes or a relay.
// Users create and change workspaces, somebody changes workloads in the cluster, and callers reach targets through the
// relays. All answers, all versions of objects in the cluster and, at the end, all messages of the streams go into the
// recording. [Judge] is a pure function of it: it knows nothing of the system but its answers, its events and the
// cluster.
package main
