package secret

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/rs/zerolog"
)

const plain = "hunter2-hunter2"

func TestSecretsDoNotPrint(t *testing.T) {
	text, key := NewText(plain), NewBytes([]byte(plain))
	type outer struct {
		Text  Text
		Bytes Bytes
		text  Text
		bytes Bytes
	}
	all := outer{text, key, text, key}
	var logged bytes.Buffer
	zl := zerolog.New(&logged)
	zl.Info().Stringer("a", text).Interface("b", key).Interface("c", all).Any("d", &all).Str("e", fmt.Sprint(text)).Send()
	slog.New(slog.NewJSONHandler(&logged, nil)).Info("x", "a", text, "b", key, "c", all)
	slog.New(slog.NewTextHandler(&logged, nil)).Info("x", "a", text, "b", key, "c", all)
	encoded, err := json.Marshal(map[string]any{"a": text, "b": key, "c": all, "d": []Text{text}})
	if err != nil {
		t.Fatal(err)
	}
	outputs := []string{logged.String(), string(encoded)}
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%d"} {
		for _, v := range []any{text, key, &text, &key, all, &all, []Text{text}, map[string]Bytes{"k": key}, fmt.Errorf("wrapped: %v", text)} {
			outputs = append(outputs, fmt.Sprintf(verb, v))
		}
	}
	for _, out := range outputs {
		for _, form := range []string{plain, fmt.Sprintf("%x", plain), base64.StdEncoding.EncodeToString([]byte(plain)), fmt.Sprint([]byte(plain))} {
			if strings.Contains(out, form) {
				t.Errorf("the secret shows in %s", out)
			}
		}
	}
	if fmt.Sprint(text) != Redacted || fmt.Sprint(key) != Redacted {
		t.Errorf("printed as %v and %v", text, key)
	}
}

func TestText(t *testing.T) {
	var zero Text
	if !zero.IsZero() || zero.Reveal() != "" || !zero.Equal(NewText("")) {
		t.Error("the zero Text is not empty")
	}
	a := NewText("a")
	if a.IsZero() || a.Reveal() != "a" || !a.Equal(NewText("a")) || a.Equal(NewText("b")) || a.Equal(NewText("ab")) {
		t.Error("comparison is wrong")
	}
	var read Text
	if err := read.UnmarshalText([]byte("from file")); err != nil || read.Reveal() != "from file" {
		t.Errorf("read %q, %v", read.Reveal(), err)
	}
}

func TestBytes(t *testing.T) {
	var zero Bytes
	if !zero.IsZero() || zero.Reveal() != nil {
		t.Error("the zero Bytes is not empty")
	}
	src := []byte("key")
	key := NewBytes(src)
	src[0] = 'x'
	if string(key.Reveal()) != "key" || !key.Equal(NewBytes([]byte("key"))) || key.Equal(zero) {
		t.Error("the key is not a copy, or comparison is wrong")
	}
}

func TestMinting(t *testing.T) {
	seen := map[string]bool{}
	for range 100 {
		token, key := NewToken().Reveal(), NewAPIKey().Reveal()
		raw, err := base64.RawURLEncoding.DecodeString(token)
		if err != nil || len(raw) != 32 || len(token) != 43 {
			t.Fatalf("token %q: %v", token, err)
		}
		if !strings.HasPrefix(key, APIKeyPrefix) || len(key) != len(APIKeyPrefix)+43 {
			t.Fatalf("API key %q", key)
		}
		if seen[token] || seen[key] {
			t.Fatal("minted twice")
		}
		seen[token], seen[key] = true, true
	}
}

// TestDerivations holds the check values of agent protocol C.9 and keeps the derivations apart.
func TestDerivations(t *testing.T) {
	master := []byte(strings.Repeat("0123456789abcdef", 4))
	project := uuid.MustParse("3f2b8c1e-6a4d-4e7f-9b10-2c5d7e8f9a01")
	if p := guid(project); fmt.Sprintf("%x", p) != "1e8c2b3f4d6a7f4e9b102c5d7e8f9a01" {
		t.Errorf("GUID layout: %x", p)
	}
	key := ProjectSecret(master, project)
	if got := fmt.Sprintf("%x", key.Reveal()); got != "7139a39ead1a0c114b20487ab790cd43a9d5fe1a40735c85c4c3f983d573100e" {
		t.Errorf("project secret: %s", got)
	}
	if got := HMACSecretText(key).Reveal(); got != "cTmjnq0aDBFLIEh6t5DNQ6nV_hpAc1yFxMP5g9VzEA4=" {
		t.Errorf("hmac_secret: %s", got)
	}
	token := "example-agent-token-AAAAAAAAAAAAAAAAAAAAAAAAAAA"
	if got := TokenHash(master, token); got != "ae04a431e3c47d5e40c0d013f5d423b2d1cc87865b005791937ec9b6eff03e9e" {
		t.Errorf("token hash: %s", got)
	}
	if APIKeyHash(master, token) == TokenHash(master, token) || len(APIKeyHash(master, token)) != TokenHashLen {
		t.Error("API keys and tokens share a hash")
	}
	if got := PurgeToken(key, "emails", 42); got != "892366aa627cede069c86943d998ad31a930cf7f7a3efd86b1ec9ce4cabedb3e" {
		t.Errorf("purge token: %s", got)
	}
	// Spare capacity behind the master must not be written to.
	roomy := append(make([]byte, 0, 256), master...)
	TokenHash(roomy, token)
	if tail := roomy[len(roomy):cap(roomy)]; !bytes.Equal(tail, make([]byte, len(tail))) {
		t.Error("the master's memory was written to")
	}
}
