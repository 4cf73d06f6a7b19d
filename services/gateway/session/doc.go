// Package session is the person whom a browser has signed in, and the encryption of what browsers keep for the gateway.
// It is pure but for random numbers.
package session
