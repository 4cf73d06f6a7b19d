package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"path"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes/scheme"
)

// acceptingCluster is a stand-in for an API server: it accepts every object that a dispatcher
// applies, and records when revisions of workspaces arrive.
type acceptingCluster struct {
	arrivals *timeline[arrival]
}

type arrival struct {
	workspace string
	revision  int64
}

// applied waits for a revision of a workspace, or a later one, and returns the time of its arrival.
func (c *acceptingCluster) applied(ctx context.Context, workspace string, revision int64) time.Time {
	return c.arrivals.first(ctx, func(a arrival) bool { return a.workspace == workspace && a.revision >= revision })
}

// serve handles the lists and watches of the dispatcher, which are empty. It returns false for the other requests.
func (c *acceptingCluster) serve(w http.ResponseWriter, r *http.Request) bool {
	at := time.Now()
	collection, query := path.Base(r.URL.Path), r.URL.Query()
	switch {
	case r.URL.Path == "/readyz":
	case r.Method != http.MethodGet:
		if strings.Contains(r.URL.Path, "/configmaps") {
			c.record(r, at)
		}
		return false
	case collection == "configmaps":
		writeEmptyList(w, "v1", "ConfigMapList")
	case collection == "namespaces" && query.Get("watch") == "":
		writeEmptyList(w, "meta.k8s.io/v1", "PartialObjectMetadataList")
	case collection == "namespaces" && query.Get("sendInitialEvents") == "":
		w.Header().Set("Content-Type", "application/json")
		_ = http.NewResponseController(w).Flush() // a client that is gone needs no answer
		<-r.Context().Done()
	default:
		return false
	}
	return true
}

func writeEmptyList(w http.ResponseWriter, apiVersion, kind string) {
	w.Header().Set("Content-Type", "application/json")
	_, _ = fmt.Fprintf(w, `{"apiVersion":%q,"kind":%q,"metadata":{"resourceVersion":"1"},"items":[]}`, apiVersion, kind)
}

// record records the revision of a workspace in its inventory, which the dispatcher writes before it applies.
func (c *acceptingCluster) record(r *http.Request, at time.Time) {
	raw, _ := io.ReadAll(r.Body) // the server fails on a part
	r.Body = io.NopCloser(bytes.NewReader(raw))
	object, _, _ := scheme.Codecs.UniversalDeserializer().Decode(raw, nil, nil)
	inventory, is := object.(*corev1.ConfigMap)
	if !is {
		return
	}
	workspace, isInventory := strings.CutPrefix(inventory.Name, "workspace-")
	revision, err := strconv.ParseInt(inventory.Data["desired_revision"], 10, 64)
	if isInventory && err == nil {
		c.arrivals.add(arrival{workspace, revision}, at, nil)
	}
}
