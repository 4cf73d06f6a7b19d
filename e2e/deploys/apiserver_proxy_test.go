package deploys_test

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

// apiServerProxy forwards to an API server. It can block the lists and watches of workloads.
type apiServerProxy struct {
	t          testing.TB
	kubeconfig string
	handler    http.Handler

	mu      sync.Mutex
	blocked chan struct{}   // closed when requests may pass
	expired map[string]bool // watches to be answered with 410 Gone
	watched map[string]bool // all watches so far
	passing sync.WaitGroup  // the requests that have passed and go on
	cancels []context.CancelFunc
}

func newAPIServerProxy(t testing.TB, kubeconfig string) *apiServerProxy {
	t.Helper()
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	require.NoError(t, err)
	transport, err := rest.TransportFor(config)
	require.NoError(t, err)
	server, err := url.Parse(config.Host)
	require.NoError(t, err)
	d := &apiServerProxy{
		t:          t,
		blocked:    make(chan struct{}),
		expired:    map[string]bool{},
		watched:    map[string]bool{},
		kubeconfig: filepath.Join(t.TempDir(), "kubeconfig"),
		handler: &httputil.ReverseProxy{
			Transport: transport, FlushInterval: -1, ErrorLog: log.New(t.Output(), "API server proxy: ", 0),
			Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(server) },
		},
	}
	d.unblock()
	listening := httptest.NewServer(d)
	t.Cleanup(func() {
		d.cancelWatches()
		listening.Close()
	})
	const name = "proxy"
	require.NoError(t, clientcmd.WriteToFile(clientcmdapi.Config{
		Clusters:       map[string]*clientcmdapi.Cluster{name: {Server: listening.URL}},
		AuthInfos:      map[string]*clientcmdapi.AuthInfo{name: {}},
		Contexts:       map[string]*clientcmdapi.Context{name: {Cluster: name, AuthInfo: name}},
		CurrentContext: name,
	}, d.kubeconfig))
	return d
}

// ServeHTTP implements [http.Handler].
func (d *apiServerProxy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	query := r.URL.Query()
	watching, _ := strconv.ParseBool(query.Get("watch"))
	if r.Method == http.MethodGet && strings.HasPrefix(r.URL.Path, "/apis/apps/v1/") {
		what := r.URL.Path + "?" + query.Get("labelSelector")
		ctx, cancel := context.WithCancel(r.Context())
		defer cancel()
		if !d.pass(ctx, cancel, what, watching) {
			return
		}
		defer d.passing.Done()
		if watching && query.Get("sendInitialEvents") == "" && d.hasExpired(what) {
			d.refuse(w, http.StatusGone, metav1.StatusReasonExpired)
			return
		}
		r = r.WithContext(ctx)
	}
	d.handler.ServeHTTP(w, r)
}

// pass waits until a request may pass, and counts it among those that go on. It returns false if ctx ends before.
func (d *apiServerProxy) pass(ctx context.Context, cancel context.CancelFunc, what string, watching bool) bool {
	for {
		d.mu.Lock()
		blocked := d.blocked
		select {
		case <-blocked:
			d.passing.Add(1)
			if watching {
				d.cancels = append(d.cancels, cancel)
				d.watched[what] = true
			}
			d.mu.Unlock()
			return true
		default:
			d.mu.Unlock()
		}
		select {
		case <-blocked:
		case <-ctx.Done():
			return false
		}
	}
}

// hasExpired reports whether a watch is to be answered with 410 Gone. It is so once.
func (d *apiServerProxy) hasExpired(what string) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	expired := d.expired[what]
	delete(d.expired, what)
	return expired
}

func (d *apiServerProxy) refuse(w http.ResponseWriter, code int, reason metav1.StatusReason) {
	raw, err := runtime.Encode(scheme.Codecs.LegacyCodec(metav1.SchemeGroupVersion), &metav1.Status{
		TypeMeta: metav1.TypeMeta{
			APIVersion: "v1",
			Kind:       "Status",
		},
		Status: metav1.StatusFailure,
		Reason: reason,
		Code:   int32(code),
	})
	if err != nil {
		d.t.Errorf("write the response: %v", err)
	}
	w.Header().Set("Content-Type", runtime.ContentTypeJSON)
	w.WriteHeader(code)
	_, _ = w.Write(raw)
}

// block cancels every watch and makes new requests wait. What happens in the cluster from then on is not seen: a watch
// that is cancelled could still pass on an event, so block waits for its end.
func (d *apiServerProxy) block() {
	d.mu.Lock()
	d.blocked = make(chan struct{})
	d.mu.Unlock()
	d.cancelWatches()
	d.passing.Wait()
}

func (d *apiServerProxy) cancelWatches() {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, cancel := range d.cancels {
		cancel()
	}
	d.cancels = nil
}

// unblock lets requests pass again.
func (d *apiServerProxy) unblock() {
	d.mu.Lock()
	defer d.mu.Unlock()
	close(d.blocked)
}

// unblockExpired lets requests pass again and answers each earlier watch with 410 Gone, so that its
// client lists anew.
func (d *apiServerProxy) unblockExpired() {
	d.mu.Lock()
	for what := range d.watched {
		d.expired[what] = true
	}
	d.mu.Unlock()
	d.unblock()
}
