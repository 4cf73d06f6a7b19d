// Package page shows people the pages of the gateway itself: a title, a text, the state of a workspace, one button.
//
// A page loads nothing and runs no script but the one that follows the state. [Policy] is the Content-Security-Policy
// that enforces it.
package page
