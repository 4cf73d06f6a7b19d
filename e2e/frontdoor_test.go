package e2e_test

import (
	"context"
	"log"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// frontDoor stands before an API server, and knows its visitors. It can be shut before those who list and watch workloads.
type frontDoor struct {
	t          *testing.T
	kubeconfig string
	behind     http.Handler

	mu    sync.Mutex
	shut  chan struct{}   // closed when visitors are let in
	old   map[string]bool // watches that are too old to go on, by what they watch
	seen  map[string]bool // what was watched ever
	inner []context.CancelFunc
}

func newFrontDoor(t *testing.T, kubeconfig string) *frontDoor {
	t.Helper()
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	require.NoError(t, err)
	transport, err := rest.TransportFor(config)
	require.NoError(t, err)
	server, err := url.Parse(config.Host)
	require.NoError(t, err)
	d := &frontDoor{t: t, shut: make(chan struct{}), old: map[string]bool{}, seen: map[string]bool{}, kubeconfig: filepath.Join(t.TempDir(), "kubeconfig"), behind: &httputil.ReverseProxy{
		Transport: transport, FlushInterval: -1, ErrorLog: log.New(t.Output(), "front door: ", 0),
		Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(server) },
	}}
	d.open()
	listening := httptest.NewServer(d)
	t.Cleanup(func() {
		d.breakOff()
		listening.Close()
	})
	const name = "front-door"
	require.NoError(t, clientcmd.WriteToFile(clientcmdapi.Config{
		Clusters:       map[string]*clientcmdapi.Cluster{name: {Server: listening.URL}},
		AuthInfos:      map[string]*clientcmdapi.AuthInfo{name: {}},
		Contexts:       map[string]*clientcmdapi.Context{name: {Cluster: name, AuthInfo: name}},
		CurrentContext: name,
	}, d.kubeconfig))
	return d
}

// ServeHTTP implements [http.Handler].
func (d *frontDoor) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	asked := r.URL.Query()
	watching, _ := strconv.ParseBool(asked.Get("watch"))
	if r.Method == http.MethodGet && strings.HasPrefix(r.URL.Path, "/apis/apps/v1/") {
		ctx, cancel := context.WithCancel(r.Context())
		defer cancel()
		r = r.WithContext(ctx)
		d.mu.Lock()
		shut := d.shut
		d.mu.Unlock()
		select {
		case <-shut:
		case <-r.Context().Done():
			return
		}
		what := r.URL.Path + "?" + asked.Get("labelSelector")
		d.mu.Lock()
		old := watching && asked.Get("sendInitialEvents") == "" && d.old[what]
		if watching {
			d.inner = append(d.inner, cancel)
			d.seen[what] = true
		}
		if old {
			delete(d.old, what)
		}
		d.mu.Unlock()
		if old {
			d.refuse(w, http.StatusGone, metav1.StatusReasonExpired)
			return
		}
	}
	d.behind.ServeHTTP(w, r)
}

func (d *frontDoor) refuse(w http.ResponseWriter, code int, reason metav1.StatusReason) {
	raw, err := runtime.Encode(scheme.Codecs.LegacyCodec(metav1.SchemeGroupVersion), &metav1.Status{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}, Status: metav1.StatusFailure, Reason: reason, Code: int32(code),
	})
	if err != nil {
		d.t.Errorf("refuse a visitor: %v", err)
	}
	w.Header().Set("Content-Type", runtime.ContentTypeJSON)
	w.WriteHeader(code)
	_, _ = w.Write(raw)
}

// close breaks every watch off, and lets visitors wait.
func (d *frontDoor) close() {
	d.mu.Lock()
	d.shut = make(chan struct{})
	d.mu.Unlock()
	d.breakOff()
}

func (d *frontDoor) breakOff() {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, cancel := range d.inner {
		cancel()
	}
	d.inner = nil
}

// open lets visitors in again.
func (d *frontDoor) open() {
	d.mu.Lock()
	defer d.mu.Unlock()
	close(d.shut)
}

// openToNew lets visitors in again, and tells each who watched before that it is too late to go on.
func (d *frontDoor) openToNew() {
	d.mu.Lock()
	for what := range d.seen {
		d.old[what] = true
	}
	d.mu.Unlock()
	d.open()
}
