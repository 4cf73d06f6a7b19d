// Package api serves the API for people: controllers and decisions. Handlers authorize and validate, and call the
// packages that store. Bad input changes nothing.
package api
