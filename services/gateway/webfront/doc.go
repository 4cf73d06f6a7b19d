// Package webfront is people's way into workspaces by HTTP: https://<port>--<workspace>.<zone>. It lets a request pass
// if its page may make it (package origin), somebody has signed in (signin) and may enter (access); then it forwards it
// to the port of the workspace, WebSockets and streams included.
//
// Below /.lockstep/ are the gateway's own paths on each host of a workspace. They are no longer there for its programs.
//
// A workspace that does not run is answered by a page with its live state and a button that starts it. Nothing else
// starts one: a page that reconnects by itself does not.
//
// When the right ends, open requests and WebSockets end with it.
package webfront
