package notifysend

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"signalbox/appliance/notify"
	"signalbox/appliance/secret"
)

// TestTextsCallNobody: the names and errors of tasks, which anybody may have written, neither call people in a chat nor make
// links that read as something else. Services that show plain text get it as it is.
func TestTextsCallNobody(t *testing.T) {
	t.Parallel()
	const said = "task @all <!channel> <https://bad.example|ok> [bank](https://bad.example) @everyone failed"
	got := make(chan string, 1)
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		var m struct {
			Text string `json:"text"`
		}
		if json.Unmarshal(body, &m) != nil || m.Text == "" {
			m.Text = string(body)
		}
		got <- m.Text
		_, _ = io.WriteString(w, "{}")
	}))
	defer srv.Close()
	s := New(Options{Version: "1"})
	defer s.Close()
	defer http.DefaultClient.CloseIdleConnections()
	host := strings.TrimPrefix(srv.URL, "http://")
	for url, plain := range map[string]bool{
		"mattermost://" + host + "/token?disabletls=yes": false,
		"ntfy://" + host + "/topic?scheme=http":          true,
	} {
		set := notify.Settings{Service: &notify.ServiceSettings{URL: secret.NewText(url)}}
		if err := s.Send(context.Background(), set, notify.Message{Subject: "s", Text: said}); err != nil {
			t.Errorf("%s: %v", url, err)
			continue
		}
		text := <-got
		for _, part := range []string{"@all", "@everyone", "<!", "<https", "]("} {
			if strings.Contains(text, part) != plain {
				t.Errorf("%s: %q in %q", url, part, text)
			}
		}
	}
}
