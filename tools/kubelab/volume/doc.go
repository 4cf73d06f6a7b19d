// Package volume provides a lab's dynamic volumes: the default StorageClass "standard" and a provisioner that
// creates a hostPath PersistentVolume for every claim of that class, and deletes the volume when its claim is
// gone. Binding, protection and the phases are done by the real controllers.
//
// No folder is created, because pods of a lab run no processes. A claim with the annotation
// kubelab.lockstep.dev/fault: provision-failure stays pending until the annotation is removed.
package volume
