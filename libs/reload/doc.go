// Package reload reads configuration files again when they change, so that rules and secrets are replaced without a
// restart.
//
// A file that cannot be read, or whose content is invalid, changes nothing: the last valid content stays in use, an
// error is logged, and the part is degraded in /readyz until the file is valid.
package reload
