// Package pki makes and keeps what a lab's components prove their identity
// with: one certificate authority, a serving certificate for the API server,
// one client certificate per component and for the person, and the key that
// signs service account tokens.
//
// Ensure is idempotent: a folder that holds a complete bundle is left as it is,
// so that a lab restarted on kept data keeps its kubeconfig. The bundle appears
// in one rename; a process killed in the middle leaves no half of it. All files
// are readable by their owner only. Certificates are valid for ten years, on
// 127.0.0.1 and the names that pods would use.
//
// A Link is made anew for each run of a lab: an authority apart from the lab's,
// by which the API server and the kubelets know each other and nobody else.
package pki
