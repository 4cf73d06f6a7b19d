// Package pki creates the certificates and keys of a lab: one certificate authority, a serving certificate for
// the API server, one client certificate per component and one for the user, and the key that signs service
// account tokens.
//
// Ensure is idempotent: a folder that holds a complete bundle is left as it is, so that a lab restarted on kept
// data keeps its kubeconfig. The bundle appears in one rename; a killed process leaves no partial bundle. All
// files are readable by their owner only. Certificates are valid for ten years, on 127.0.0.1 and the names that
// pods would use.
//
// KubeletCerts are created again for each run of a lab: they have a separate CA for mutual TLS between the API
// server and the kubelets only.
package pki
