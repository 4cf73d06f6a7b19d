// Package process runs the workspace agents of pods as processes of this machine, so that people can enter workspaces
// of a lab. It handles the pods with the annotation kubelet.AgentAnnotation; package kubelet simulates all others.
//
// Of such a pod only the workspace agent runs, as the user of the lab: the one program that the lab was given, with
// the commands install, clone and run. The command that the agent would run in the container does not run, and
// containers without the agent are simulated. The agent sees the pod's volumes, config maps, secrets and environment
// in a private folder. It listens on an address of its own, kubelet.ProcessAddress, so that ports need no change.
//
// A worker per pod owns its processes, its folder and its status. A process that ends is started again with the
// back-off of kubelets. When the pod is deleted, the worker ends all its processes, those that have left their
// process group too, removes the folder, and deletes the pod. When the lab ends, or is killed, its processes end; the
// next lab removes what was left.
package process
