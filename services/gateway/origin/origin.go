package origin

import (
	"net/http"
	"net/url"
	"strings"

	"lockstep.internal/services/gateway/address"
)

// Decision is what to do with a request.
type Decision int

// Decisions.
const (
	// Refuse the request: another site, or another workspace, wants something that only a page of this one may.
	Refuse Decision = iota
	// Allow the request.
	Allow
	// AllowShared allows it, and its answer may be read by the page of another port of the same workspace (CORS).
	AllowShared
)

// Decide decides about a request to a port of a workspace.
//
//   - Pages of the same origin may do everything, and so may programs, which send neither header.
//   - Pages of another port of the same workspace may do everything, and read the answers.
//   - Everything else may only navigate: a link or a bookmark that opens the page. That is a GET request whose answer
//     no script can read. A frame is no navigation: the page would be under the control of another.
func Decide(zone address.Zone, target address.Target, request *http.Request) Decision {
	from := request.Header.Get("Origin")
	site := request.Header.Get("Sec-Fetch-Site")
	switch {
	case from == "" && (site == "" || site == "same-origin"):
		return Allow
	case from == "" && site == "none": // the address bar
		return Allow
	case from != "" && from != "null":
		source, ok := parse(zone, from)
		if ok && source == target {
			return Allow
		}
		if ok && source.Workspace == target.Workspace {
			return AllowShared
		}
	}
	if navigates(request) {
		return Allow
	}
	return Refuse
}

func parse(zone address.Zone, origin string) (address.Target, bool) {
	u, err := url.Parse(origin)
	if err != nil || u.Scheme != "https" || u.User != nil || u.Path != "" || u.RawQuery != "" {
		return address.Target{}, false
	}
	target, ok := zone.Parse(u.Host)
	return target, ok && strings.EqualFold(u.Host, zone.Host(target)) // the port of the gateway counts here
}

func navigates(request *http.Request) bool {
	return (request.Method == http.MethodGet || request.Method == http.MethodHead) &&
		request.Header.Get("Sec-Fetch-Mode") == "navigate" && request.Header.Get("Sec-Fetch-Dest") == "document" &&
		request.Header.Get("Upgrade") == ""
}

// Share adds the headers that let the page of another port read the answer, with cookies.
func Share(request *http.Request, answer http.Header) {
	answer.Set("Access-Control-Allow-Origin", request.Header.Get("Origin"))
	answer.Set("Access-Control-Allow-Credentials", "true")
	answer.Add("Vary", "Origin")
}

// IsPreflight reports whether a request asks what it may do (CORS). The gateway answers it for shared requests: the
// browser sends no cookie with it.
func IsPreflight(request *http.Request) bool {
	return request.Method == http.MethodOptions && request.Header.Get("Access-Control-Request-Method") != ""
}

// AnswerPreflight allows what was asked for.
func AnswerPreflight(request *http.Request, w http.ResponseWriter) {
	Share(request, w.Header())
	w.Header().Set("Access-Control-Allow-Methods", request.Header.Get("Access-Control-Request-Method"))
	if headers := request.Header.Get("Access-Control-Request-Headers"); headers != "" {
		w.Header().Set("Access-Control-Allow-Headers", headers)
	}
	w.Header().Set("Access-Control-Max-Age", "600")
	w.WriteHeader(http.StatusNoContent)
}
