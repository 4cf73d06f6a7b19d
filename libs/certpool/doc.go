// Package authority reads who vouches for certificates, from PEM files.
//
// A file that is not there, or holds no certificate at all, is an error, so that nobody is trusted by mistake and nobody refused without a reason. What else is in a file is passed over.
package certpool
