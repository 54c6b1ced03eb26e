//! The plain JSON body of `POST /route`, read in one pass. Anything unusual gives None, and Python
//! then reads it; so what is accepted here must mean the same in `routing/http/requests.py`.

use prefix_index::limits::BLOCK_SIZE_MAX;
use prefix_index::scan::{DEFAULT_TENANT, once, read_object};

/// As `ROUTE_TOKENS_MAX` there.
const TOKENS_MAX: u64 = (1 << 31) - 1;

pub struct Asked<'a> {
    pub model: &'a str,
    pub lora_name: &'a str,
    pub tenant_id: &'a str,
    pub cache_salt: &'a str,
    pub block_size: u32,
    /// u32 LE.
    pub tokens: Vec<u8>,
    /// Empty for none.
    pub request_id: &'a str,
    pub expected_output_tokens: Option<u64>,
    /// As they came.
    pub candidates: Option<&'a [u8]>,
}

#[derive(Default)]
struct Fields<'a> {
    model: Option<&'a str>,
    modelname: Option<&'a str>,
    lora_name: Option<&'a str>,
    tenant_id: Option<&'a str>,
    cache_salt: Option<&'a str>,
    block_size: Option<u64>,
    tokens: Option<Vec<u8>>,
    request_id: Option<&'a str>,
    expected_output_tokens: Option<u64>,
    candidates: Option<&'a [u8]>,
    reserve: Option<()>,
}

pub fn read(body: &[u8]) -> Option<Asked<'_>> {
    let mut fields = Fields::default();
    read_object(body, |name, scanner| match name {
        "model" => once(&mut fields.model, scanner.string()?),
        "modelname" => once(&mut fields.modelname, scanner.string()?),
        "lora_name" => once(&mut fields.lora_name, scanner.string()?),
        "tenant_id" => once(&mut fields.tenant_id, scanner.string()?),
        "cache_salt" => once(&mut fields.cache_salt, scanner.string()?),
        "request_id" => once(&mut fields.request_id, scanner.string()?),
        "token_ids" => once(&mut fields.tokens, scanner.tokens()?),
        "candidates" => once(&mut fields.candidates, scanner.array()?),
        "reserve" => once(&mut fields.reserve, scanner.yes()?),
        "block_size" => once(&mut fields.block_size, scanner.integer()?),
        "expected_output_tokens" => once(&mut fields.expected_output_tokens, scanner.integer()?),
        _ => None,
    })?;
    check(fields)
}

fn check(fields: Fields) -> Option<Asked> {
    let block_size = fields.block_size.filter(|size| (1..=BLOCK_SIZE_MAX).contains(size))?;
    let asked = Asked {
        model: fields.model.or(fields.modelname).filter(|name| !name.is_empty())?,
        lora_name: fields.lora_name.unwrap_or_default(),
        tenant_id: fields.tenant_id.filter(|name| !name.is_empty()).unwrap_or(DEFAULT_TENANT),
        cache_salt: fields.cache_salt.unwrap_or_default(),
        block_size: block_size.try_into().ok()?,
        tokens: fields.tokens.filter(|tokens| !tokens.is_empty())?,
        request_id: fields.request_id.unwrap_or_default(),
        expected_output_tokens: fields.expected_output_tokens,
        candidates: fields.candidates,
    };
    let has_output = asked.expected_output_tokens.is_none_or(|tokens| tokens <= TOKENS_MAX);
    has_output.then_some(asked)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAIN: &str = r#""model":"m","block_size":16,"token_ids":[1,2]"#;

    #[test]
    fn every_field_is_read() {
        let body = format!(
            r#" {{{PLAIN},"lora_name":"l","tenant_id":"t","cache_salt":"s","request_id":"r",
            "expected_output_tokens":7,"reserve":true,
            "candidates": [{{"instance_id":"a]\"b"}}, {{"dp_rank":[1]}}] }}"#
        );
        let asked = read(body.as_bytes()).unwrap();
        let names = [asked.model, asked.lora_name, asked.tenant_id, asked.cache_salt];
        assert_eq!((names, asked.request_id), (["m", "l", "t", "s"], "r"));
        assert_eq!((asked.block_size, asked.expected_output_tokens), (16, Some(7)));
        assert_eq!(asked.tokens, [1, 0, 0, 0, 2, 0, 0, 0]);
        let candidates = asked.candidates.map(|raw| std::str::from_utf8(raw).unwrap());
        assert_eq!(candidates, Some(r#"[{"instance_id":"a]\"b"}, {"dp_rank":[1]}]"#));
        let asked = read(br#"{"modelname":"n","block_size":1,"token_ids":[1]}"#).unwrap();
        assert_eq!((asked.model, asked.tenant_id, asked.request_id), ("n", DEFAULT_TENANT, ""));
        assert_eq!((asked.expected_output_tokens, asked.candidates), (None, None));
    }

    #[test]
    fn what_is_not_plain_is_left_to_python() {
        for more in [
            r#""reserve":false"#,
            r#""explain":true"#,
            r#""phase":"combined""#,
            r#""policy":"random""#,
            r#""session_id":"s""#,
            r#""priority":1"#,
            r#""slo":{}"#,
            r#""prompt_tokens":2"#,
            r#""additional_salt":"x""#,
            r#""candidates":null"#,
            r#""candidates":[{]"#,
            r#""candidates":["x]"#,
            r#""expected_output_tokens":2147483648"#,
            r#""expected_output_tokens":-1"#,
            r#""request_id":"a\n""#,
            r#""model":"m""#,
        ] {
            assert!(read(format!("{{{PLAIN},{more}}}").as_bytes()).is_none(), "{more}");
        }
        for body in [
            r#"{"block_size":16,"token_ids":[1]}"#,
            r#"{"model":"","block_size":16,"token_ids":[1]}"#,
            r#"{"model":"m","block_size":0,"token_ids":[1]}"#,
            r#"{"model":"m","block_size":16,"token_ids":[]}"#,
            r#"{"model":"m","block_size":16}"#,
            r#"{"model":"m","block_size":16,"token_ids":[1]}x"#,
            "",
        ] {
            assert!(read(body.as_bytes()).is_none(), "{body}");
        }
    }
}
