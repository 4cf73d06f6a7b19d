// Package certpool loads CA certificates from PEM files.
//
// A missing file or a file without a certificate is an error, so that a configuration mistake is never silent.
// Other PEM blocks in the file are ignored.
package certpool
