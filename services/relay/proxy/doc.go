// Package proxy carries callers' HTTP requests to agents.
package proxy
